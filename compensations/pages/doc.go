// Package pages tells humans what only a human can decide.
//
//	incident opened ─▶ look, every few seconds: which channel has not heard of it?
//	                     │ a page job for each
//	                     ▼
//	                   send ──▶ told: open ──▶ again every repeat, until …
//	                     ▲                        acknowledged, then resolved
//	                     └── the channel is down: later, as often as it takes
//
// A channel is brought up to date: it is told what an incident is now, whenever
// that is not what it was told last. So a job may run twice or be cut off
// anywhere, and what was missed while a channel was down is not repeated to it.
//
// The look also opens the incidents that no commit of the engine can: keys that
// collided, whose transactions were rolled back, and providers that nobody
// serves.
package pages
