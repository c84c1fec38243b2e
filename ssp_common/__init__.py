"""What all sources share: errors, and how options are described and checked."""
