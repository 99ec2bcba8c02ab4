package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/invopop/jsonschema"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
)

// People copy the examples of the documentation.
func TestTheExamplesOfTheDocumentationAreValid(t *testing.T) {
	for _, name := range []string{"SLACK_TOKEN", "STRIPE_KEY", "PAGERDUTY_KEY"} {
		t.Setenv(name, "secret")
	}
	t.Setenv("DATABASE_URL", "postgres://localhost/app")
	t.Setenv("SLACK_WEBHOOK", "https://hooks.slack.com/services/T0/B0/x")
	t.Setenv("WEBHOOK_SECRET", signingSecret)
	const provider = "providers: {p: {adapter: http, http: {base_url: https://p.example}, tools: {t: {http: {path: /}, idempotency: {class: read_only}}}}}\n"
	around := map[string]string{
		"README.md":          "providers:\n",
		"docs/console.md":    provider,
		"docs/retention.md":  provider,
		"docs/incidents.md":  provider,
		"docs/postgres.md":   provider,
		"docs/operations.md": provider,
		"docs/outcomes.md":   "providers:\n  bank:\n    adapter: http\n    http: {base_url: https://bank.example}\n",
	}
	secrets := secretFiles(t)
	for _, page := range documents(t) {
		for _, example := range yamlIn(t, page) {
			if isPart := !strings.Contains(example, "version: 1\n"); isPart {
				example = "version: 1\n" + around[page] + example
			}
			example = secrets.mount(t, example)
			if got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", example)); got.code != exitOK {
				t.Errorf("%s: %s\n%s", page, got.stderr, example)
			}
		}
	}
}

// documents returns all pages that may show a configuration. docs/kubernetes.md shows values of the chart, which are
// tested with the chart.
func documents(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/adapters/*.md"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			if page := strings.TrimPrefix(file, "../../../"); page != "docs/kubernetes.md" {
				all = append(all, page)
			}
		}
	}
	if len(all) < 10 {
		t.Fatalf("found only %v", all)
	}
	return all
}

func yamlIn(t *testing.T, page string) (examples []string) {
	t.Helper()
	text, err := os.ReadFile("../../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		examples = append(examples, string(match[1]))
	}
	return examples
}

const signingSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// mounted has the files that replace those to which an example refers. The end of a file's name says what it holds.
type mounted struct{ certificate, key, signing, other string }

var fileReference = regexp.MustCompile(`\$\{file:([^}]+)\}`)

func (m mounted) mount(t *testing.T, example string) string {
	t.Helper()
	return fileReference.ReplaceAllStringFunc(example, func(reference string) string {
		name := fileReference.FindStringSubmatch(reference)[1]
		switch {
		case strings.HasSuffix(name, ".pem"), strings.HasSuffix(name, ".crt"):
			return "${file:" + m.certificate + "}"
		case strings.HasSuffix(name, ".key"):
			return "${file:" + m.key + "}"
		case strings.HasSuffix(name, "hook"):
			return "${file:" + m.signing + "}"
		}
		return "${file:" + m.other + "}"
	})
}

func secretFiles(t *testing.T) mounted {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return mounted{
		certificate: write(t, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))),
		key:         write(t, "tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))),
		signing:     write(t, "hook", signingSecret),
		other:       write(t, "other", "secret"),
	}
}

const configurationPage = "../../../docs/configuration.md"

// The page lists the fields of the published schema, so neither of the two can be ahead.
func TestEveryFieldOfTheConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, _ := strings.Cut(string(text), "## The file")
	want := introduction + listsOfFields(t)
	if *update {
		if err := os.WriteFile(configurationPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("docs/configuration.md is stale; run this test with -update, and look at what changed")
	}
}

func listsOfFields(t *testing.T) string {
	t.Helper()
	registry := builtins(t)
	published, err := config.Schema(registry)
	if err != nil {
		t.Fatal(err)
	}
	var root jsonschema.Schema
	if err := json.Unmarshal(published, &root); err != nil {
		t.Fatal(err)
	}
	provider := property(t, &root, "providers").AdditionalProperties
	tool := property(t, provider, "tools").AdditionalProperties

	page := fieldPage{shown: map[string]string{}}
	page.list("## The file", "", &root, nil)
	page.list("## A provider: `providers.<name>`", "", provider, registry.Names())
	page.list("## A tool: `providers.<name>.tools.<operation>`", "", tool, registry.Names())
	page.list("## A channel: `pages[]`", "", property(t, &root, "pages").Items, nil)
	for _, adapter := range registry.Names() {
		fmt.Fprintf(&page, "## Adapter [`%s`](adapters/%[1]s.md)\n\n", adapter)
		page.list("### `providers.<name>."+adapter+"`", adapter+".", property(t, provider, adapter), nil)
		page.list("### `providers.<name>.tools.<operation>."+adapter+"`", adapter+".", property(t, tool, adapter), nil)
	}
	return strings.TrimSpace(page.String()) + "\n"
}

// fieldPage is the page of fields. A block that several places share is
// listed at the first of them.
type fieldPage struct {
	strings.Builder
	shown map[string]string
}

// list writes the fields of a block, and the fields of the blocks inside it with their paths. in is the name of the
// block in other lists.
func (r *fieldPage) list(heading, in string, block *jsonschema.Schema, except []string) {
	rows := r.fields(block, "", in, except)
	if len(rows) > 0 {
		r.WriteString(heading + "\n\n" + strings.Join(rows, "") + "\n")
	}
}

func (r *fieldPage) fields(block *jsonschema.Schema, path, in string, except []string) (rows []string) {
	if block.Properties == nil {
		return nil
	}
	for pair := block.Properties.Oldest(); pair != nil; pair = pair.Next() {
		if slices.Contains(except, pair.Key) {
			continue
		}
		name, field := path+pair.Key, pair.Value
		described := row(name, field, slices.Contains(block.Required, pair.Key))
		if path == "" && (pair.Key == "providers" || pair.Key == "pages" || pair.Key == "tools") { // they have lists of their own
			rows = append(rows, described)
			continue
		}
		// Blocks are the same if their fields are, also where those refer to a list further up.
		content := strings.Join((&fieldPage{shown: map[string]string{}}).within("", "", field), "")
		first, again := r.shown[content]
		if again && content != "" {
			rows = append(rows, fmt.Sprintf("%s It has the same fields as `%s`.\n", strings.TrimSpace(described), first))
			continue
		}
		r.shown[content] = in + name
		rows = append(append(rows, described), r.within(name, in, field)...)
	}
	return rows
}

// within returns the fields of a field's own block, of its forms and of its items.
func (r *fieldPage) within(name, in string, field *jsonschema.Schema) (rows []string) {
	if field.Items != nil && field.Items.Properties != nil {
		return r.fields(field.Items, name+"[].", in, nil)
	}
	rows = r.fields(field, name+".", in, nil)
	for _, form := range field.OneOf {
		rows = append(rows, r.fields(form, name+".", in, nil)...)
	}
	return rows
}

// row describes one field: its kind, unless it is text or the fields below show
// it, its default, and its meaning.
func row(name string, field *jsonschema.Schema, required bool) string {
	facts := []string{}
	isText := kind(field) == "text" && field.Description != ""
	if is := kind(field); is != "block" && !isText {
		facts = append(facts, is)
	}
	switch {
	case required:
		facts = append(facts, "required")
	case field.Default != nil:
		facts = append(facts, fmt.Sprintf("default `%s`", literal(field.Default)))
	}
	text := strings.Join(facts, ", ")
	if text != "" {
		text += ". "
	}
	description := strings.ReplaceAll(field.Description, "<", `\<`)
	return strings.TrimRight(fmt.Sprintf("- `%s`: %s%s", name, text, description), " ") + "\n"
}

// literal writes a number as people write it in the file.
func literal(value any) string {
	if number, ok := value.(float64); ok {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

func kind(field *jsonschema.Schema) string {
	switch {
	case len(field.Enum) > 0:
		values, explained := make([]string, len(field.Enum)), len(field.Enum) > 1
		for i, value := range field.Enum {
			values[i] = fmt.Sprintf("`%v`", value)
			explained = explained && regexp.MustCompile(fmt.Sprintf(`\b%v[:,]`, value)).MatchString(field.Description)
		}
		if explained {
			return "text"
		}
		return strings.Join(values, ", ")
	case len(field.OneOf) > 0:
		return "block or text"
	case strings.HasSuffix(field.Pattern, `|\$\{`):
		return "duration"
	case field.Type == "array":
		return "list"
	case field.AdditionalProperties != nil && field.AdditionalProperties.Properties != nil:
		return "blocks by name"
	case field.Type == "object" && field.Properties == nil:
		return "map"
	case field.Type == "object":
		return "block"
	case field.Type == "string":
		return "text"
	case field.Type == "boolean":
		return "`true`, `false`"
	}
	return field.Type
}

func property(t *testing.T, of *jsonschema.Schema, name string) *jsonschema.Schema {
	t.Helper()
	found, ok := of.Properties.Get(name)
	if !ok {
		t.Fatalf("the schema has no %s", name)
	}
	return found
}

func TestEveryLinkOfTheDocumentationLeadsSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for _, page := range prose(t) {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), "code"), -1) {
			target, section, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s is not there", page, found[1])
			} else if section != "" && strings.HasSuffix(file, ".md") && !sections(read(t, file))[section] {
				t.Errorf("%s: %s has no such section", page, found[1])
			}
		}
	}
}

// A reader follows the walk of a row from file to file.
func TestEveryFileOfTheArchitectureHasItsFunction(t *testing.T) {
	t.Parallel()
	text := read(t, "../../../docs/architecture.md")
	walk := regexp.MustCompile("(?m)^\\| \\d+ \\| `([^`]+)` \\| `(\\w+)` \\|").FindAllStringSubmatch(text, -1)
	if len(walk) == 0 || len(walk) > 12 {
		t.Errorf("the walk has %d files", len(walk))
	}
	for _, step := range walk {
		if declares := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + step[2] + `\(`); !declares.MatchString(read(t, "../../../"+step[1])) {
			t.Errorf("%s has no function %s", step[1], step[2])
		}
	}
	for _, file := range regexp.MustCompile("`([a-z]+/[a-z0-9_/]+\\.(?:go|sql))`").FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(file[1], "sql/") { // it is next to the file of its row
			continue
		}
		_, err := os.Stat("../../../" + file[1])
		if _, statement := os.Stat("../../../drainer/postgres/sql/" + file[1]); err != nil && statement != nil {
			t.Errorf("docs/architecture.md names %s, which is not there", file[1])
		}
	}
}

func TestEveryTestThatTheDocumentationNamesExists(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, found := range declaration.FindAllStringSubmatch(read(t, path), -1) {
			written[found[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for _, page := range []string{"docs/guarantees.md", "docs/operations.md", "docs/security.md", "CONTRIBUTING.md"} {
		for _, name := range named.FindAllString(read(t, "../../../"+page), -1) {
			if !written[name] {
				t.Errorf("%s names %s, which no file declares", page, name)
			}
		}
	}
}

// prose returns all pages for people, by their paths from here.
func prose(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adapters/*.md", "docs/runbooks/*.md"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 20 {
		t.Fatalf("found only %v", pages)
	}
	return pages
}

// sections returns the anchors that a page's headings have at GitHub.
func sections(page string) map[string]bool {
	anchors := map[string]bool{}
	dropped, linked := regexp.MustCompile(`[^\p{L}\p{N} _-]`), regexp.MustCompile(`\]\([^)]*\)`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		text := linked.ReplaceAllString(heading[1], "]")
		anchors[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(text), ""), " ", "-")] = true
	}
	return anchors
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var update = flag.Bool("update", false, "write the lists of metrics and fields again")

func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	const page = "../../../docs/metrics.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, _ := strings.Cut(string(text), "- `drainer_")
	want := introduction + listOfMetrics(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("docs/metrics.md is stale; look at this list, then run this test with -update\n%s", listOfMetrics(t))
	}
}

// listOfMetrics returns a line for each metric that `drainer run` registers, without those of the Go runtime.
func listOfMetrics(t *testing.T) string {
	t.Helper()
	registered, log := listing{}, slog.New(slog.DiscardHandler)
	drainer.New(nil, nil, drainer.Settings{}, log, registered)
	registerProcess(registered)
	registered.MustRegister(loginRefused(nil))
	newReloadMetrics(registered)
	newSpanMetrics(registered)
	parts, err := partsOf(pools{}, &config.Config{Retention: config.Retention{Default: time.Hour, MaxRun: time.Hour}}, log, registered)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = jobs.New(nil, log, registered, parts.saga, parts.pager, parts.upkeep) // this fails because River lacks a pool, but the metrics are registered by then

	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			list.WriteString(registered[name])
		}
	}
	return list.String()
}

// listing is a registerer that keeps a line for each metric, by its name.
type listing map[string]string

func (l listing) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		descriptions := make(chan *prometheus.Desc, 100)
		collector.Describe(descriptions)
		close(descriptions)
		for description := range descriptions {
			l.add(kindOf(collector), description.String())
		}
	}
}

func (l listing) Register(collector prometheus.Collector) error {
	l.MustRegister(collector)
	return nil
}

func (l listing) Unregister(prometheus.Collector) bool { return false }

var (
	description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel  = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

func (l listing) add(kind, text string) {
	parts := description.FindStringSubmatch(text)
	if parts == nil {
		l[text] = text + "\n" // no page has this line
		return
	}
	name, _ := strconv.Unquote(parts[1])
	help, _ := strconv.Unquote(parts[2])
	labels := constLabel.ReplaceAllString(parts[3], "$1") + parts[4]
	if labels != "" {
		kind += " by " + strings.ReplaceAll(labels, ",", ", ")
	}
	l[name] = fmt.Sprintf("- `%s`, %s: %s\n", name, kind, help)
}

func kindOf(collector prometheus.Collector) string {
	switch collector.(type) {
	case interface{ IsGauge() }, interface {
		WithLabelValues(...string) prometheus.Gauge
	}, prometheus.Gauge:
		return "gauge"
	case interface {
		WithLabelValues(...string) prometheus.Counter
	}, prometheus.Counter:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	case prometheus.GaugeFunc: // each type above has the methods of this one, too
		return "gauge"
	}
	return "other"
}

// An operator who was woken up types the commands of the runbook.
func TestTheCommandsOfTheRunbooksExist(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	inCode := regexp.MustCompile("(?m)(?:^|`)(drainer [^`\n]*)")
	tested := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range inCode.FindAllStringSubmatch(string(text), -1) {
			tested++
			if err := parses(builtins(t), match[1]); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(page), match[1], err)
			}
		}
	}
	if tested < 30 {
		t.Errorf("only %d commands were found", tested)
	}
}

// parses reports what is wrong with a command line, without running it.
func parses(registry dispatch.Registry, line string) error {
	words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1)
	for i := range words {
		words[i] = strings.Trim(words[i], `"`)
	}
	command, rest, err := newRoot(registry).Find(words[1:])
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}

// A test of the chart reads the same sentence, so that a change of these blocks, and of no others, replaces the pods.
func TestTheDocumentationListsTheBlocksThatNeedARestart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reload.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range newOptions(builtins(t)).source(nil, nil).fixedOf(&config.Config{}) {
		blocks = append(blocks, "`"+block.block+"`")
	}
	last := len(blocks) - 1
	want := "Changes of " + strings.Join(blocks[:last], ", ") + " and " + blocks[last] + " need a restart."
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("docs/reload.md does not say %q", want)
	}
}
