package mcp

import "time"

// BePatient sets how long the adapter waits for an answer to server/discover.
func (a *Adapter) BePatient(patience time.Duration) { a.patience = patience }
