"""The four APIs: how each is asked, what its replies and streams must be, what an answer is."""
