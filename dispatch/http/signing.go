package http

import (
	"net/http"

	"github.com/agentoutbox/drainer/dispatch"
)

// Signer adds to a rendered request what proves who sent it. It is called once
// for each attempt, since what it adds may depend on the time.
type Signer func(header http.Header, body []byte)

// NewSigned is [New] for protocols that sign what they send.
func NewSigned(spec dispatch.Spec, sign Signer) (*Adapter, error) {
	adapter, err := New(spec)
	if err != nil {
		return nil, err
	}
	adapter.provider.sign = sign
	return adapter, nil
}
