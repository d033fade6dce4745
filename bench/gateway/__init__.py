"""`tasuki bench gateway`: the unmodified smg gateway before many simulated nodes, in wall clock."""
