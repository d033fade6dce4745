"""A hub without files: tests request adapters from it and name them to servers, and these accept
none."""


class _Hub:
    def snapshot_download(self, repo_id: str) -> str:
        """Return a path to nothing."""
        return f"/no-such-folder/{repo_id}"


def hf_api() -> _Hub:
    return _Hub()
