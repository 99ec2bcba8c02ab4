package providerblock

import (
	"bytes"
	"fmt"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
)

// unknownServer can never be reached (RFC 2606), so that a forgotten
// placeholder sends nothing to anybody.
const unknownServer = "https://base-url.invalid"

// Block is one provider of a configuration file.
type Block struct {
	name     string
	settings http.Settings
	tools    map[string]tool

	unsaid []string // what a person must add, a sentence each
}

// What follows is the shape of the file that drainer/config reads.

type file struct {
	Version   int                 `yaml:"version"`
	Providers map[string]provider `yaml:"providers"`
}

type provider struct {
	Adapter string          `yaml:"adapter"`
	HTTP    http.Settings   `yaml:"http"`
	Tools   map[string]tool `yaml:"tools"`
}

type tool struct {
	HTTP           http.Tool     `yaml:"http"`
	Idempotency    idempotency   `yaml:"idempotency,flow"`
	Lookup         *lookup       `yaml:"lookup,omitempty,flow"`
	CompensateWith *compensation `yaml:"compensate_with,omitempty,flow"`
	ReversalWindow string        `yaml:"reversal_window,omitempty"`
	Retention      string        `yaml:"retention,omitempty"`
}

type idempotency struct {
	Class dispatch.Class `yaml:"class"`
	TTL   string         `yaml:"ttl,omitempty"`
	Scope string         `yaml:"scope,omitempty"`
}

type lookup struct {
	Tool string `yaml:"tool"`
}

type compensation struct {
	Tool string `yaml:"tool"`
}

// Empty reports whether no operation could be taken over.
func (b *Block) Empty() bool { return len(b.tools) == 0 }

// YAML writes a whole configuration file with this one provider.
func (b *Block) YAML() ([]byte, error) {
	content, err := yaml.MarshalWithOptions(file{
		Version:   1,
		Providers: map[string]provider{b.name: {Adapter: "http", HTTP: b.settings, Tools: b.tools}},
	}, yaml.Indent(2))
	if err != nil {
		return nil, fmt.Errorf("writing the provider block: %w", err)
	}
	var text bytes.Buffer
	for _, line := range b.remarks() {
		text.WriteString("# " + line + "\n")
	}
	text.Write(content)
	return text.Bytes(), nil
}

func (b *Block) ask(format string, args ...any) {
	b.unsaid = append(b.unsaid, fmt.Sprintf(format, args...))
}

// remarks say what the document does not.
func (b *Block) remarks() []string {
	remarks := []string{
		"Add the credentials (http.headers), and where a response holds the provider's own",
		"id of the effect (http.response.ref of a tool). No document says either.",
	}
	if b.settings.BaseURL == unknownServer {
		remarks = append(remarks, "Replace base_url: the document names no absolute server.")
	}
	return append(remarks, b.unsaid...)
}
