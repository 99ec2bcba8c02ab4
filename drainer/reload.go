package drainer

import "errors"

// errStopped says that a daemon stops, or has stopped.
var errStopped = errors.New("the daemon is stopping; nothing was reloaded")

// reload is what [Daemon.Reload] hands to [Daemon.Run].
type reload struct {
	providers []Provider
	done      chan error
}

// Reload puts these providers in the place of those that the daemon serves. It
// returns nil when they are served: when a new worker has joined that claims
// for them. While the database is away, it waits, and the old ones stay.
//
// The worker before claims nothing more from then on. It gives back what it has
// not sent, and what it has in flight ends in its own time and is settled as
// ever, outside of ShutdownTimeout unless the daemon stops. Together they keep
// the providers' limits. Then the adapters before are closed.
//
// The adapters are the daemon's, whatever Reload returns; no adapter may be
// handed in twice. An error says that the daemon has stopped.
func (d *Daemon) Reload(providers []Provider) error {
	request := reload{providers, make(chan error, 1)}
	select {
	case d.reloads <- request:
		return <-request.done
	case <-d.ended:
		closeAdapters(providers, func(string) bool { return false }, d.log)
		return errStopped
	}
}
