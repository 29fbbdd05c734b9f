// RouterService for Node: the protos are read as they are, nothing is generated.
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const definitions = protoLoader.loadSync(
  ["contraflow/v1/router_service.proto", "google_rpc.proto"],
  {
    includeDirs: [here("../../../proto"), here(".")],
    longs: String, // 64-bit counts do not fit a Number; BigInt(text) to calculate with them
    enums: String,
    defaults: true,
    oneofs: true, // event.event names the member of the oneof that is set
  },
);

const { RouterService } = grpc.loadPackageDefinition(definitions).contraflow.v1;

/** A router at a gRPC target: `planTurn` returns a promise, `generate` a call to read. */
export function connect(target) {
  const client = new RouterService(target, grpc.credentials.createInsecure());
  const planTurn = promisify(client.planTurn.bind(client));
  const until = (seconds) => ({ deadline: Date.now() + seconds * 1000 });
  return {
    planTurn: (request) => planTurn(request, until(5)),
    generate: (request) => client.generate(request, until(60)),
    close: () => client.close(),
  };
}

/** `{reason, domain, metadata}` of a failed call; undefined if its server gave none. */
export function errorInfo(error) {
  const [trailer] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!trailer) return undefined;
  const { details } = definitions["google.rpc.Status"].deserialize(trailer);
  const found = details.find((one) => one.type_url.endsWith("/google.rpc.ErrorInfo"));
  return found && definitions["google.rpc.ErrorInfo"].deserialize(found.value);
}

/** The name of a gRPC status code, such as "NOT_FOUND". */
export const statusName = (error) => grpc.status[error.code];
