"""A stand-in for downloads from the Hugging Face hub, without files. Tests request adapters from it
and name them to servers; a server accepts none of them."""


class _Hub:
    def snapshot_download(self, repo_id: str) -> str:
        """Return a path without a file, instead of downloading a repository."""
        return f"/no-such-folder/{repo_id}"


def hf_api() -> _Hub:
    return _Hub()
