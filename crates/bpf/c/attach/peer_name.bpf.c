/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The answer of accept() and getpeername(): the client, if a header named one. And of getsockname(): the
 * destination, where that is to be shown. */
#include "attach/names.h"

/* NULL: not an attached socket, or the sender is the client. */
static __always_inline struct name *name_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return 0;
	struct name *name = bpf_sk_storage_get(&tp_names, sk, 0, 0);
	return name && name->client_version ? name : 0;
}

SEC("cgroup/getpeername4")
int peer_name4(struct bpf_sock_addr *ctx)
{
	struct name *name = name_of(ctx);
	/* An IPv6 client can't be shown on an AF_INET socket: the sender's address stays. */
	if (!name || name->client_version != 4)
		return 1;
	ctx->user_ip4 = name->client.word[3];
	ctx->user_port = name->client_port;
	return 1;
}

SEC("cgroup/getpeername6")
int peer_name6(struct bpf_sock_addr *ctx)
{
	struct name *name = name_of(ctx);
	if (!name)
		return 1;
	COPY_IPV6(ctx->user_ip6, name->client.word);
	ctx->user_port = name->client_port;
	return 1;
}

static __always_inline struct endpoint *destination_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&tp_destinations, sk, 0, 0) : 0;
}

SEC("cgroup/getsockname4")
int own_name4(struct bpf_sock_addr *ctx)
{
	struct endpoint *destination = destination_of(ctx);

	if (!destination || !is_ipv4(&destination->address))
		return 1;
	ctx->user_ip4 = destination->address.word[3];
	ctx->user_port = destination->port;
	return 1;
}

SEC("cgroup/getsockname6")
int own_name6(struct bpf_sock_addr *ctx)
{
	struct endpoint *destination = destination_of(ctx);

	if (!destination)
		return 1;
	COPY_IPV6(ctx->user_ip6, destination->address.word);
	ctx->user_port = destination->port;
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
