"""One run, from start to end: prepared, played, resumed, checked, rehearsed."""
