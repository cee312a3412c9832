"""Files that an Ascend NPU leaves behind: operator dumps and their names, stats, overflow records, fusion files."""
