"""What every bench measures with: clocks, floors, host, report."""
