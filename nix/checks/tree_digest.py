"""The tree in the store has the recorded digest, computed by torchlock and not by Nix."""

import sys
from pathlib import Path

from torchlock.records import read_records
from torchlock.tree import tree_digest, tree_on_disk

source, site = map(Path, sys.argv[1:])
recorded = read_records(source / "torchlock/records", "linux-64").tree
found = tree_digest(tree_on_disk(site))
if found != recorded:
    sys.exit(f"{site} has tree digest {found}, {recorded} is recorded")
