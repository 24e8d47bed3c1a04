"""What must not cost a run: kills, stops, disks, hangs. `make chaos` runs the long part too."""
