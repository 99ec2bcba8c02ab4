package nats

import (
	"context"
	"errors"
	"net"

	"github.com/agentoutbox/drainer/dispatch"
)

// dialer gives the client's dials the context that it does not know of: until
// the connection stands, the end of ctx ends it.
type dialer struct {
	ctx     context.Context
	network dispatch.Network
	failed  error       // the last dial's; the client hides some
	release func() bool // takes the connection out of ctx's reach
}

// Dial is called by the client, one dial at a time.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.network.DialContext(d.ctx, network, address)
	if err != nil {
		d.failed = err
		return nil, err
	}
	d.failed = nil
	d.release = context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	return conn, nil
}

// keep lets the connection outlive ctx.
func (d *dialer) keep() { d.release() }

// explain adds to the client's error why there was no connection.
func (d *dialer) explain(err error) error { return errors.Join(err, d.failed) }
