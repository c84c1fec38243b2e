"""Code shared by both sources: errors, logs, options, AWS access and stored documents."""
