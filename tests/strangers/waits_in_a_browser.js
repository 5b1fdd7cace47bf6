([url, count, topic]) => {
  const session = purgatory.openSession(url);
  const wait = async (offset) => {
    const partitions = [{ topicPartition: { topic }, requiredOffset: BigInt(offset) }];
    const result = await session.wait({ timeoutMs: 600_000n, condition: { case: "produce", value: { partitions } } });
    const outcome = result.outcome === 1 ? "SATISFIED" : `outcome ${result.outcome}`;
    return [`${result.operationId}`, outcome, `${result.partitions[0].requiredOffset}`];
  };
  const waits = Array.from({ length: count }, (_, index) => wait(index + 1));
  window.ended = Promise.all(waits).then(async (lines) => { await session.close(); return lines; });
}
