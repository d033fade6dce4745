"""HTTP routes of the Responses API: responses, background responses, WebSockets, compaction."""
