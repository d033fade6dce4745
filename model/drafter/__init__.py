"""A block drafter: proposes several tokens in one pass, from streams of the target's layers."""
