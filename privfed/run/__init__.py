"""One run, from start to end: prepared, executed, resumed, checked, rehearsed."""
