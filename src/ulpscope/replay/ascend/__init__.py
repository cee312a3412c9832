"""Operators of an Ascend graph computed again in high precision from what a device dumped; plain numpy."""
