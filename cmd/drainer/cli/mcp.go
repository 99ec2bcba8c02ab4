package cli

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/internal/spelling"
	"github.com/agentoutbox/drainer/mcpserver"
)

// maxAgents is how many connections a fleet of agents may keep open to the MCP server.
const maxAgents = 512

// mcpSetup holds the flags of `drainer mcp`.
type mcpSetup struct {
	listen, token string
	payloads      bool
	enqueue       []string
}

func newMCP(options *options) *cobra.Command {
	var setup mcpSetup
	command := &cobra.Command{
		Use:   "mcp",
		Short: "Answer agents and assistants over the Model Context Protocol",
		Long: `mcp is an MCP server, on standard input and output, or over streamable HTTP with
--listen. Its tools say why an intent waits, what happened in a run, which
incidents are open, which providers are shut and what the doctor finds. It shows
no payload, no response and of a provider's words only error codes, without
--show-payloads.

--enqueue takes intents of the tools that it names, each as an MCP tool with the
payload_schema of the configuration. Run and step come from the headers Drainer-Run,
Drainer-Step and Drainer-Scope over HTTP, else from DRAINER_RUN, DRAINER_STEP and
DRAINER_SCOPE, and never from the model. A step of the environment serves one call.

No tool retries, cancels, resolves or approves: a person does that.`,
		Example: `  drainer mcp --config drainer.yaml
  drainer mcp --listen 127.0.0.1:9466 --config drainer.yaml
  drainer mcp --listen :9466 --token-file /run/secrets/mcp --enqueue stripe/create_charge --config drainer.yaml`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return options.mcp(command, setup) },
	}
	flags := command.Flags()
	flags.StringVar(&setup.listen, "listen", "", "`host:port` to serve streamable HTTP on, in place of standard input and output")
	flags.StringVar(&setup.token, "token-file", "", "`file` with the bearer token that clients must send; other than loopback addresses need it, and --enqueue with --listen")
	flags.BoolVar(&setup.payloads, "show-payloads", false, "show payloads, responses and what providers wrote")
	flags.StringSliceVar(&setup.enqueue, "enqueue", nil, "`tools` of which intents are taken")
	return command
}

func (o *options) mcp(command *cobra.Command, setup mcpSetup) error {
	ctx := command.Context()
	guard, err := setup.guard(command)
	if err != nil {
		return err
	}
	offers, err := o.offers(command, setup.enqueue)
	if err != nil {
		return err
	}
	database, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	if err := checkDatabase(ctx, database); err != nil {
		return err
	}
	pool, err := pgpool.Open(ctx, database, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	served := mcpserver.Options{
		Pool: pool, ShowPayloads: setup.payloads, PolicyOf: o.promises(command), Offers: offers, Version: currentVersion().Version,
		StepOf: mcpserver.StepOfEnvironment(os.Getenv),
		Examine: func(ctx context.Context) ([]doctor.Finding, error) {
			patient, err := o.patient(command, true)
			if err != nil {
				return nil, err
			}
			return doctor.Examine(ctx, patient)
		},
	}
	if setup.listen == "" {
		if err := mcpserver.New(served).Run(ctx, &sdk.StdioTransport{}); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("serve MCP: %w", err)
		}
		return nil
	}
	served.StepOf = mcpserver.StepOfHeaders
	server := mcpserver.New(served)
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true, MaxRequestBodyBytes: 1 << 20})
	listener, err := net.Listen("tcp", setup.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(command.ErrOrStderr(), "The MCP server is at http://%s/\n", listener.Addr())
	// A web page in a person's browser must not call tools.
	pages := http.NewCrossOriginProtection().Handler(guard(handler))
	return servePages(ctx, listener, pages, maxAgents, slog.New(slog.NewJSONHandler(command.ErrOrStderr(), nil)))
}

// guard lets only requests with the token through. Without a token, it allows only a listener that other machines
// cannot reach.
func (m mcpSetup) guard(command *cobra.Command) (func(http.Handler) http.Handler, error) {
	if m.token != "" {
		text, err := config.ReadFile(m.token)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		token := strings.TrimSpace(string(text))
		if len(token) < 20 {
			return nil, usagef(command, "--token-file: the token has %d characters; take at least 20, such as of `openssl rand -hex 20`", len(token))
		}
		if strings.ContainsFunc(token, unicode.IsSpace) {
			return nil, usagef(command, "--token-file: the token has a space or a second line, which no header can carry; take such as of `openssl rand -hex 20`")
		}
		return auth.RequireBearerToken(func(_ context.Context, sent string, _ *http.Request) (*auth.TokenInfo, error) {
			if subtle.ConstantTimeCompare([]byte(sent), []byte(token)) == 0 {
				return nil, auth.ErrInvalidToken
			}
			return &auth.TokenInfo{}, nil
		}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true}), nil
	}
	everyone := func(next http.Handler) http.Handler { return next }
	if m.listen == "" {
		return everyone, nil
	}
	if len(m.enqueue) > 0 {
		return nil, usagef(command, "--enqueue with --listen needs --token-file: each user of this machine can connect, and would act in any run")
	}
	return everyone, onlyHere(command, m.listen, "say with --token-file which token they must send")
}

// offers returns the named tools with their schemas from the configuration.
func (o *options) offers(command *cobra.Command, names []string) ([]mcpserver.Offer, error) {
	if len(names) == 0 {
		return nil, nil
	}
	loaded, err := o.loadPolicies(command)
	if err != nil {
		return nil, err
	}
	configured := maps.Collect(loaded.Tools())
	var offers []mcpserver.Offer
	taken := map[string]string{}
	for _, name := range names {
		policy, known := configured[name]
		if !known {
			return nil, usagef(command, "--enqueue: the configuration has no tool %q; %s", name, spelling.Suggest(name, slices.Sorted(maps.Keys(configured))))
		}
		offer := mcpserver.Offer{Tool: name, Schema: policy.Payload}
		if !takesObject(offer.Schema) {
			return nil, usagef(command, `--enqueue: payload_schema of %s must say {"type": "object"}: the arguments of an MCP tool are an object`, name)
		}
		if other, is := taken[offer.Name()]; is {
			return nil, usagef(command, "--enqueue: %s and %s would both be the MCP tool %s; name one of them", other, name, offer.Name())
		}
		taken[offer.Name()] = name
		offers = append(offers, offer)
	}
	return offers, nil
}

// takesObject reports whether a schema declares an object, as MCP demands of a tool's arguments.
func takesObject(schema dispatch.PayloadSchema) bool {
	if schema == nil {
		return true
	}
	var says struct {
		Type any `json:"type"`
	}
	return json.Unmarshal(schema.Document(), &says) == nil && says.Type == "object"
}
