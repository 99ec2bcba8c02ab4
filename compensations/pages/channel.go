package pages

import (
	"context"
	"time"
)

// Channel is one way to reach a human.
type Channel struct {
	Name   string        // in the table, in metrics and in logs
	Repeat time.Duration // how often it hears of an incident that stays open
	Sender Sender
}

// Sender delivers one page; nil says that the other side has taken it. An error
// shows neither an address nor a secret.
type Sender interface {
	Send(context.Context, Page) error
}
