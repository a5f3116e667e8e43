"""Read Delta tables with Spark, in an environment that has pyspark and nothing of ours.

stdin: folder, version or null, columns, SQL conditions ──► a scan for each ──► stdout: the rows of each, a line of JSON

python read_rows.py JARS
"""

from __future__ import annotations

import json
import sys
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit


def main(jars: str) -> None:
    """Print the rows that each condition finds."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")  # 50 otherwise, whatever the table's size
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.codegen.wholeStage", "false")  # compiling takes longer than such small queries
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    for line in sys.stdin:
        folder, version, columns, conditions = json.loads(line)
        reader = spark.read.format("delta")
        table = (reader if version is None else reader.option("versionAsOf", version)).load(folder)
        scans = [table.where(text).select(lit(number), *columns) for number, text in enumerate(conditions)]
        rows: list[list[object]] = [[] for _ in conditions]
        for number, *values in reduce(DataFrame.unionAll, scans).collect():
            rows[number].append(values)
        print("rows", json.dumps(rows, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
