"""Operations whose operands or results are sparse."""
