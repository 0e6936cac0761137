"""Private selection: the cost of choosing among several runs by a released score."""
