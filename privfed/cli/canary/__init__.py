"""The commands of canaries for other people's pipelines."""
