package dispatchtest

import (
	"net/http"
	"strings"
	"time"
)

const effectsPath = "/effects/"

// isLookup reports whether a request asks about an effect instead of for one.
func isLookup(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, effectsPath)
}

// lookup answers GET /effects/{key}: 200 with the receipt of the first effect
// under the key, 404 where there is none. An effect that is still to come is
// none yet.
func (p *SimulatedProvider) lookup(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, effectsPath)
	fault, err := p.Ledger.addLookup(Entry{At: time.Now(), Key: key, Method: r.Method, Path: r.URL.Path}, orHealthy(p.LookupPlan))
	if err != nil {
		unwritten(w)
		return
	}
	if p.failedBefore(w, fault) {
		return
	}
	p.pause(r.Context(), fault, Slow, HangBefore)
	effect, found := p.Ledger.firstEffect(key)
	if !found {
		writeReply(w, http.StatusNotFound, problem(http.StatusNotFound, "No effect under this key"))
		return
	}
	writeReply(w, http.StatusOK, receipt(effect.Path)(effect.ID))
}
