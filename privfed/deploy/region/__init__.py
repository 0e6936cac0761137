"""The coordinator of a region, which is a party of the server's sum and asks the region's sites."""
