"""What all sources share: errors, how options are described and checked, how AWS is asked."""
