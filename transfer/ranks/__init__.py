"""Transfers between nodes with any numbers of ranks: the heads and bytes sent from each rank to
each rank."""
