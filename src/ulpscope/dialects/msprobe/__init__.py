"""The files of msprobe: read as a trace, and written from one."""
