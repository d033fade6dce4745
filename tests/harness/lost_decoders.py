"""Decoding processes that are killed with a picture in work."""

from tasuki.model.vision.decoding.decoders import PictureDecoders


def lose_next(decoders: PictureDecoders) -> None:
    """Have the only idle process killed as its next picture begins."""
    (worker,) = decoders._idle
    decode = worker.decode

    def killed(*job: object) -> object:
        worker.kill()
        return decode(*job)  # type: ignore[arg-type]

    worker.decode = killed  # type: ignore[method-assign, assignment]
