package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// Offer is a configured tool of which intents are taken.
type Offer struct {
	Tool   string                 // provider/operation
	Schema dispatch.PayloadSchema // of its payload; nil takes any object
}

// Name is the name of the MCP tool. Many clients take letters, digits, _ and - alone.
func (o Offer) Name() string {
	return "enqueue_" + strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, o.Tool)
}

// StepOf names the run, step and scope of a call, from where no model writes: a model that is
// asked again names them again, and the effect would happen twice. The header is nil where the
// call did not come over HTTP.
type StepOf func(http.Header) (dispatch.Tuple, error)

// Headers that name the step of a call over HTTP. Without a scope the run is the scope.
const (
	RunHeader   = "Drainer-Run"
	StepHeader  = "Drainer-Step"
	ScopeHeader = "Drainer-Scope"
)

// StepOfHeaders reads them.
func StepOfHeaders(header http.Header) (dispatch.Tuple, error) {
	return tupleOf(RunHeader, StepHeader, ScopeHeader, header.Get)
}

// StepOfEnvironment reads DRAINER_RUN, DRAINER_STEP and DRAINER_SCOPE once: the environment
// stays, so it would give a second call the step of the first.
func StepOfEnvironment(getenv func(string) string) StepOf {
	var used atomic.Bool
	return func(http.Header) (dispatch.Tuple, error) {
		tuple, err := tupleOf("DRAINER_RUN", "DRAINER_STEP", "DRAINER_SCOPE", getenv)
		if err == nil && used.Swap(true) {
			err = errors.New("the step of this server's environment is used up; start a server for each step, or name steps by header over HTTP")
		}
		return tuple, err
	}
}

func tupleOf(run, step, scope string, get func(string) string) (dispatch.Tuple, error) {
	tuple := dispatch.Tuple{AgentRunID: get(run), StepID: get(step), BusinessScope: get(scope)}
	if tuple.AgentRunID == "" || tuple.StepID == "" {
		return tuple, fmt.Errorf("%s and %s must both be set where this server or its client is started; no argument can name a step", run, step)
	}
	if tuple.BusinessScope == "" {
		tuple.BusinessScope = tuple.AgentRunID
	}
	return tuple, nil
}

// sentences tell a model what became of its request. The packages for producers use the same.
var sentences = map[string]string{
	"recorded":            "It is recorded. It will be carried out, or its failure reported. Do not ask for it again.",
	"pending":             "It is recorded and not done yet. It will be carried out, or its failure reported. Do not ask for it again.",
	"completed":           "It is done.",
	"failed":              "It failed and was not done. Do not ask for it again. Tell the user.",
	"unknown":             "It is not known whether it was done. A person is finding out. Do not ask for it again.",
	"cancelled":           "It was cancelled before anything was done. Do not ask for it again.",
	"compensated":         "It was done, and then undone. Do not ask for it again.",
	"compensation_failed": "It was done. Undoing it failed, and a person has to undo it. Do not ask for it again.",
	"key_taken":           "This step was already asked for with other values. The first request stands. Do not ask for it again.",
	"run_closed":          "This run is closed. Nothing more of it will be done. Stop.",
	"invalid":             "It was not recorded, because the request is malformed. Tell the user.",
	"unknown_tool":        "It was not recorded, because there is no such tool. Tell the user.",
	"other_tenant":        "It was not recorded, because this run belongs to another tenant. Stop.",
	"limit_reached":       "It was not recorded, because a limit is reached. Stop for now. The same request can be made later.",
}

// refusals are the schema's own errors, by their SQLSTATE.
var refusals = map[string]string{
	"OB001": "key_taken", "OB002": "run_closed", "OB003": "invalid", "OB004": "unknown_tool",
	"OB005": "other_tenant", "OB006": "limit_reached",
}

func (s *server) offer(to *sdk.Server, offer Offer) {
	schema := json.RawMessage(`{"type": "object"}`)
	if offer.Schema != nil {
		schema = offer.Schema.Document()
	}
	tool := &sdk.Tool{
		Name: offer.Name(),
		Description: "Record one call of " + offer.Tool + ". It is carried out once, after this call has answered, " +
			"and a repetition of this step records nothing new.",
		InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{IdempotentHint: true},
	}
	to.AddTool(tool, func(ctx context.Context, request *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		text, err := s.enqueue(ctx, offer, request)
		if err != nil {
			refused := &sdk.CallToolResult{}
			refused.SetError(err)
			return refused, nil
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
	})
}

// enqueue commits one intent. The error is for the model.
func (s *server) enqueue(ctx context.Context, offer Offer, request *sdk.CallToolRequest) (string, error) {
	payload := request.Params.Arguments
	if len(payload) == 0 {
		payload = json.RawMessage(`{}`)
	}
	if !bytes.HasPrefix(bytes.TrimLeft(payload, " \t\r\n"), []byte("{")) {
		return "", errors.New("nothing was recorded: the arguments must be an object")
	}
	if offer.Schema != nil {
		if violation := offer.Schema.Violation(payload); violation != nil {
			return "", fmt.Errorf("nothing was recorded: the arguments violate the tool's schema: %s", violation.Detail)
		}
	}
	var header http.Header
	if request.Extra != nil {
		header = request.Extra.Header
	}
	tuple, err := s.StepOf(header)
	tuple.ToolName = offer.Tool
	if err == nil {
		err = tuple.Validate()
	}
	if err != nil {
		return "", fmt.Errorf("nothing was recorded: %w", err)
	}
	var receipt operator.Receipt
	err = s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		receipt, err = operator.Open(conn).Enqueue(ctx, tuple, payload)
		return err
	})
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refusals[refused.Code] != "":
		return "", errors.New(sentences[refusals[refused.Code]])
	case refused != nil && strings.HasPrefix(refused.Code, "22"): // "data exception", such as \u0000
		return "", errors.New(sentences["invalid"])
	case errors.Is(err, operator.ErrUnserved):
		return "", errors.New(sentences["unknown_tool"])
	case err != nil: // the commit may have happened before its reply was lost
		return "", fmt.Errorf("it may have been recorded: %w. Tell the user", told(err))
	case receipt.Created:
		return sentences["recorded"], nil
	case receipt.Status == "in_progress":
		return sentences["pending"], nil
	}
	return sentences[receipt.Status], nil
}
