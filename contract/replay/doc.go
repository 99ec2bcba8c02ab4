// Package replay calls a provider to see whether it keeps its word about
// repeated calls. The calls are real, and so are their effects.
//
//	one fresh key:      first ─▶ the same again ─▶ another payload
//	another fresh key:  many at once
//	                         │
//	                         ▼ judge, by the class that the tool declares
//	                       Report
//
// It goes through the configured adapter, so it tests what a drainer would
// see. Bodies are compared as they would be stored: octet for octet, after
// what a jsonb column cannot hold has been replaced.
package replay
