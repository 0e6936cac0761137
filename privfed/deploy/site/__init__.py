"""What a site does when it is asked."""
