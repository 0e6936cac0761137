"""The self-contained HTML page of a run or a grid."""
