package integration_test

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// spanCollector takes OTLP over HTTP, as a collector does.
type spanCollector struct {
	url string

	mu       sync.Mutex
	raw      bytes.Buffer // all bodies
	requests int
	service  string
	spans    []*traces.Span
}

func newSpanCollector(t *testing.T) *spanCollector {
	t.Helper()
	c := &spanCollector{}
	c.url = dispatchtest.Serve(t, c)
	return c
}

func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	body, err := io.ReadAll(r.Body)
	var export collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &export) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.raw.Write(body)
	for _, resource := range export.ResourceSpans {
		c.service = attributeOf(resource.Resource.Attributes, "service.name")
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// byPhase are the spans whose names begin so, the earliest first.
func (c *spanCollector) byPhase(phase string) (spans []*traces.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if strings.HasPrefix(span.Name, phase+" ") {
			spans = append(spans, span)
		}
	}
	slices.SortFunc(spans, func(a, b *traces.Span) int { return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano) })
	return spans
}

// attributeOf is an attribute as text, and empty if there is none.
func attributeOf(attributes []*common.KeyValue, key string) string {
	for _, attribute := range attributes {
		if attribute.Key != key {
			continue
		}
		switch value := attribute.Value.Value.(type) {
		case *common.AnyValue_IntValue:
			return strconv.FormatInt(value.IntValue, 10)
		case *common.AnyValue_BoolValue:
			return strconv.FormatBool(value.BoolValue)
		default:
			return attribute.Value.GetStringValue()
		}
	}
	return ""
}
