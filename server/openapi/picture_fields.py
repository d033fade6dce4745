"""JSON Schemas of picture parts, in the form of each API. Pure.

server/pictures/part_reader.py reads these parts. A node without sight refuses each of them, and
GET /v1/models tells which one sees. test_picture_fields.py compares both.
"""

from .common_fields import (
    NOTHING,
    NULL,
    STRING,
    Fields,
    Schema,
    either,
    nonnull_array,
    number,
    object_of,
    one_of,
)

DETAILS = ("low", "high", "auto", "original")
_DETAIL: Schema = one_of([None, *DETAILS])
_URL: Schema = {
    **STRING,
    "pattern": "^([Dd][Aa][Tt][Aa]|[Hh][Tt][Tt][Pp][Ss]?):",
    "description": "a data: URL of a PNG, JPEG, WebP or GIF file in base64, or an address where "
    "the node fetches pictures",
}
_SHOWN: Schema = either(_URL, object_of({"url": _URL, "detail": _DETAIL}, ["url"]))
_COMMON: Fields = {
    "type": one_of(["image_url", "image", "input_image"]),
    "detail": _DETAIL,
    "file_id": NULL,
}
PICTURE_OF_CHATS: Schema = either(
    object_of({**_COMMON, "image_url": _SHOWN, "image": NULL}, ["type", "image_url"]),
    object_of({**_COMMON, "image": _SHOWN}, ["type", "image"]),
)
"""A picture of a user's or a tool's message in chats. `image` is Qwen's own name."""
PICTURE_OF_RESPONSES: Schema = object_of(
    {**_COMMON, "type": one_of(["input_image"]), "image_url": _SHOWN},
    ["type", "image_url"],
)
"""A picture of a user's message, or of a function's output, in Responses."""
_MEDIA_TYPE: Schema = {**STRING, "pattern": "^[Ii][Mm][Aa][Gg][Ee]/"}
_BASE64: Schema = object_of(
    {"type": one_of(["base64"]), "media_type": _MEDIA_TYPE, "data": STRING},
    ["type", "media_type", "data"],
)
_OF_URL: Schema = object_of({"type": one_of(["url"]), "url": _URL}, ["type", "url"])
SOURCE_OF_MESSAGES: Schema = either(_BASE64, _OF_URL)
"""The `source` of an image block of Messages."""
_FRAME: Schema = either(
    _URL,
    object_of({"source": SOURCE_OF_MESSAGES}, ["source"]),
    object_of({"source": NOTHING, "url": _URL}, ["url"]),
    *(
        object_of(
            {"source": NOTHING, "url": NOTHING, "detail": _DETAIL, "file_id": NULL, **fields},
            [name],
        )
        for name, fields in (
            ("image", {"image": _SHOWN}),
            ("image_url", {"image": NULL, "image_url": _SHOWN}),
        )
    ),
)
"""A frame: a URL, or a picture in the form of any API, its type not read."""
_FRAMES_URL: Schema = {
    **STRING,
    "pattern": "^[Dd][Aa][Tt][Aa]:[Vv][Ii][Dd][Ee][Oo]/[Jj][Pp][Ee][Gg];[Bb][Aa][Ss][Ee]64,",
    "description": "JPEG files in base64, separated by commas",
}
_OF_VIDEO: Fields = {
    "type": one_of(["video", "video_url"]),
    "fps": number(0.001, 1000.0),
    "detail": _DETAIL,
}
VIDEO: Schema = either(
    object_of({**_OF_VIDEO, "video": nonnull_array(_FRAME, least=1)}, ["type", "video"]),
    object_of(
        {
            **_OF_VIDEO,
            "video": NULL,
            "video_url": either(_FRAMES_URL, object_of({"url": _FRAMES_URL}, ["url"])),
        },
        ["type", "video_url"],
    ),
)
"""A video as a list of frames, wherever a picture is read. Files of video are refused."""
