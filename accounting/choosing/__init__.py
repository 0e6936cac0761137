"""Private selection: the privacy cost of choosing among several runs by a released score."""
