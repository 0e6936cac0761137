"""A federation of three hospitals on one machine: every program is the real one."""
