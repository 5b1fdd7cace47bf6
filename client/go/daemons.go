package purgatory

import (
	"fmt"
	"strings"

	_ "google.golang.org/grpc/health" // does the checks of ServiceConfig
	"google.golang.org/grpc/resolver"
)

// Scheme is that of targets which list several daemons of which one serves, as "purgatory:///10.0.0.1:7440,10.0.0.2:7440".
// A channel with such a target sends its calls to the daemon that serves. It applies ServiceConfig by itself.
const Scheme = "purgatory"

// ServiceConfig makes a channel find the daemon that serves among all addresses of its target. It is for
// grpc.WithDefaultServiceConfig, with a target such as "dns:///purgatory:7440".
const ServiceConfig = `{"loadBalancingConfig": [{"round_robin": {}}],
	"healthCheckConfig": {"serviceName": "purgatory.v1.PurgatoryService"}}`

func init() { resolver.Register(daemonList{}) }

type daemonList struct{}

func (daemonList) Scheme() string { return Scheme }

// OverrideAuthority is needed because the list as a whole is not a valid authority. Each address has its own: see Build.
func (daemonList) OverrideAuthority(target resolver.Target) string {
	first, _, _ := strings.Cut(target.Endpoint(), ",")
	return first
}

func (daemonList) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	state := resolver.State{ServiceConfig: cc.ParseServiceConfig(ServiceConfig)}
	for address := range strings.SplitSeq(target.Endpoint(), ",") {
		if address == "" {
			return nil, fmt.Errorf("an empty address in the target %q", target.String())
		}
		// Each daemon's certificate is checked against its own address.
		one := resolver.Address{Addr: address, ServerName: address}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{one}})
	}
	return fixed{}, cc.UpdateState(state)
}

// fixed is a list that does not change. Names in it are looked up by the dialer, for each connection.
type fixed struct{}

func (fixed) ResolveNow(resolver.ResolveNowOptions) {}

func (fixed) Close() {}
