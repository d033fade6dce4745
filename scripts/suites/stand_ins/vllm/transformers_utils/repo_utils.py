"""A hub without files: adapters that tests ask it for are named to servers, which take none."""


class _Hub:
    def snapshot_download(self, repo_id: str) -> str:
        """Return a path at which nothing is."""
        return f"/no-such-folder/{repo_id}"


def hf_api() -> _Hub:
    return _Hub()
