"""One round: what is charged, asked, summed, released, and stepped."""
