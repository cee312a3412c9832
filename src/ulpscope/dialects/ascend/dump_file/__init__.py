"""One dump file of an Ascend NPU: its three forms, between bytes and records."""
