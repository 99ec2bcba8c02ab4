// Package webhook is the adapter that tells a receiver of an event, signed as
// Standard Webhooks specifies (https://www.standardwebhooks.com).
//
// It is the HTTP adapter with its settings made here: one address, the key as
// webhook-id, and a signature over id, time and body. What it promises is the
// receiver's promise to recognise a webhook-id.
package webhook

import (
	"errors"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

// Kind registers the adapter as "webhook".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "webhook",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// New reports everything that is wrong with the configuration, joined, and
// repeats no secret.
func New(spec dispatch.Spec) (*http.Adapter, error) {
	receiver, err := newReceiver(spec.Settings)
	tools, toolsErr := blocks.Tools(spec.Tools, func(operation string, tool dispatch.ToolSpec) (dispatch.ToolSpec, error) {
		settings, err := receiver.call(spec.Provider+"/"+operation, tool.Settings)
		tool.Settings = block[http.Tool]{settings}
		return tool, err
	})
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	spec.Settings, spec.Tools = block[http.Settings]{receiver.settings}, tools
	return http.NewSigned(spec, receiver.sign)
}

// block hands settings on that were made here, to who decodes just these.
type block[T any] struct{ settings T }

func (b block[T]) Decode(into any) error {
	*into.(*T) = b.settings
	return nil
}
