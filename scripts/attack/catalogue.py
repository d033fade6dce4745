"""Every attack, in the order of running them: attacks without randomness first."""

from scripts.attack.attack import Attack
from scripts.attack.attacks.bombs import (
    grammar_bombs,
    gzip_bombs,
    json_bombs,
    long_conversations,
)
from scripts.attack.attacks.floods import (
    cancel_storm,
    host_tricks,
    session_flood,
    unread_streams,
)
from scripts.attack.attacks.grpc_fuzz import grpc_fuzz
from scripts.attack.attacks.heavy_texts import heavy_answers, heavy_texts, left_grammars
from scripts.attack.attacks.http_fuzz import http_fuzz
from scripts.attack.attacks.left_turns import left_turns
from scripts.attack.attacks.raw_http import raw_http, slow_clients
from scripts.attack.attacks.responses import (
    background_storm,
    conversation_flood,
    socket_frames,
)
from scripts.attack.attacks.rogue_fetch import rogue_fetch
from scripts.attack.attacks.rogue_prefill import rogue_prefill
from scripts.attack.attacks.rogue_receiver import rogue_receiver
from scripts.attack.attacks.scopes import foreign_requests, forged_keys, scope_walk
from scripts.attack.pictures.attacks import killed_decoders, odd_pictures, picture_addresses

ATTACKS = (
    Attack("forged keys", forged_keys),
    Attack("scope walk", scope_walk),
    Attack("foreign requests and sessions", foreign_requests),
    Attack("host tricks", host_tricks),
    Attack("session flood", session_flood),
    Attack("gzip bombs", gzip_bombs),
    Attack("JSON bombs", json_bombs),
    Attack("long conversations", long_conversations),
    Attack("grammar bombs", grammar_bombs),
    Attack("left grammars", left_grammars),
    Attack("heavy texts", heavy_texts),
    Attack("heavy answers", heavy_answers),
    Attack("HTTP fuzz", http_fuzz),
    Attack("raw HTTP", raw_http),
    Attack("gRPC fuzz", grpc_fuzz),
    Attack("slow and idle clients", slow_clients),
    Attack("unread streams", unread_streams),
    Attack("cancel storm", cancel_storm),
    Attack("left turns", left_turns),
    Attack("socket frames", socket_frames),
    Attack("background storm", background_storm),
    Attack("conversation flood", conversation_flood),
    Attack("odd pictures", odd_pictures),
    Attack("addresses of pictures", picture_addresses),
    Attack("killed decoders of pictures", killed_decoders),
    Attack("rogue receiver", rogue_receiver),
    Attack("rogue fetch", rogue_fetch),
    Attack("rogue prefill node", rogue_prefill),
)
