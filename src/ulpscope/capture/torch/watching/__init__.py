"""Sees what torch executes, and hands it to the recorder."""
