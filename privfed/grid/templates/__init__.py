"""Grid files to begin with, as `privfed experiment --template` prints them."""
